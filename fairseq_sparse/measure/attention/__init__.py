"""Zeros, null attention, diversity and sinks of attention, teacher-forced."""
