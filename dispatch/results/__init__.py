"""Results of calls in the form that a model reads: formatted, validated, cut, and stored for reading page by page."""

from dispatch.results.read_result_tool import ReadResultTool
from dispatch.results.result_formatter import ResultFormatter
from dispatch.results.result_page import ResultPage
from dispatch.results.result_store import ResultStore

__all__ = ["ReadResultTool", "ResultFormatter", "ResultPage", "ResultStore"]
