"""The results of a check as frozen data, and their wording: events, coverage, error maps, report files."""
