"""The stages of a check: request, target, plan, schedule, evaluate, shrink; and replay, which runs one case again."""
