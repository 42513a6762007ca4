"""Grades of many submissions, by processes of this machine or by the hosts of a Ray cluster."""
