"""What a finished completion says: its reasoning, its answer and its calls of tools. Knows no engine and no files of a run.

Public: answer, call_grammar, reasoning_marks, sections, spelling, thinking_guide, tool_format, tools.
"""
