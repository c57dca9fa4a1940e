"""Renders Jinja templates within limits of time and memory: a row's columns to a prompt, messages to a chat's text. Knows no tokens.

Public: prompt_templates, chat_messages, chat_rendering.
"""
