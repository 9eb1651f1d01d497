"""Tests of Haulage, by the distance they keep from the real thing."""
