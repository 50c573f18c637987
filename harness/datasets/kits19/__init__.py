"""KiTS19: abdominal CT volumes with kidneys and their tumours; made up, or read from a real tree."""

from harness.datasets.kits19.generated import Kits19Like

__all__ = ["Kits19Like"]
