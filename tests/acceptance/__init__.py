"""The real processes side by side, on real servers, killed and stopped at the worst moments."""
