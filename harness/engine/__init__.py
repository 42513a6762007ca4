"""From a request to verdicts: plan, evaluate, shrink, replay."""
