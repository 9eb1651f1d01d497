"""One function per SQL statement, each returning an executable; nothing here runs one.

Lists travel as arrays, never as expanded binds, so that every statement is compiled and
prepared once, whatever the size of its batch. All comparisons with time use ``now()``.
"""
