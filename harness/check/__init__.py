"""The stages of a check: request, target, plan, schedule, unit, cell, failure. Also replay: run one case again."""
