"""The stages of a check: request, target, plan, schedule, evaluate, shrink. Also replay: run one case again."""
