"""What a finished completion says: its reasoning, its answer and its calls of tools. Knows no engine and no files of a run.

Public: answer, call_grammar, completion_text, reasoning_marks, sections, thinking_guide, tool_format, tools.
"""
