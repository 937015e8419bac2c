"""Where the time goes: measured, predicted, explained."""
