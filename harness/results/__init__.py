"""What a check found, as frozen data, and its wording: events, coverage, maps of errors, report files."""
