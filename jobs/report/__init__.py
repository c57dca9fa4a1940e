"""mlx-bulk report: the HTML page of a run, a sweep, a comparison. page/ (template, script) becomes assets/.

Public: report.
"""
