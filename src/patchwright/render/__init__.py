"""Conversations to token ids and back, and the bridge that keeps sampled tokens exactly as sampled.

Sits beside `sandbox` and `engine`; the gateway and the trainer stand on it. No torch, no transformers.
"""

from patchwright.render.renderer import Parsed, Renderer, ToolCall
from patchwright.render.template import CHATML

__all__ = ["CHATML", "Parsed", "Renderer", "ToolCall"]
