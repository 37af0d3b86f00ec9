"""What the machine says of its power, clocks and throttling, where it says anything.

files      small files of /sys and /proc, read so that nothing raises or waits
counting   joules out of a counter that wraps, or out of watts sampled by a thread
rapl       the processor's own energy counters
jetson     the power sensors, mode and clocks of a Jetson board
nvml       an NVIDIA GPU, through nvidia-ml-py
meters     the meter of this machine, or why there is none
clocks     clock rates, of the processor or the GPU
events     counters and states that tell of throttling
settings   governor, power mode, mains or battery
watching   all of it from a start to an end, and what changed meanwhile
slowing    a device that became slower and did not say so

Every reader takes the root of the file tree. What is missing, forbidden or makes no sense reads as
None. Only Linux says anything; elsewhere all of it is None.
"""

from specedge.power.counting import Meter
from specedge.power.meters import open_meter, why_no_meter
from specedge.power.slowing import throttled_by_times
from specedge.power.watching import Seen, Watcher

__all__ = ["Meter", "Seen", "Watcher", "open_meter", "throttled_by_times", "why_no_meter"]
