"""Where the time goes: measured, predicted, explained."""

from sutler.analysis.analyzing import analyze
from sutler.analysis.model import Findings
from sutler.analysis.report import Report

__all__ = ["Findings", "Report", "analyze"]
