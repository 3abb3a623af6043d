"""The four regimes of daylight: their names, their edges, and the features usable at night.

========  ===========================================  ======================
regime    solar zenith angle                           what is seen
========  ===========================================  ======================
high      below the daytime median                     every band, well lit
mid       from the median to below 80°                 every band
low       from 80° to below 90°                        every band, long paths
night     90° and above                                thermal bands alone
========  ===========================================  ======================

Every bin is half open: an angle on an edge belongs to the bin above it.
"""

# Here since `scenes` and `regimes` both need these facts, and neither imports the other.

REGIMES = ("high", "mid", "low", "night")
"""Names of the regimes, from the highest sun to none."""

LOW_SUN = 80.0
"""Solar zenith angle, degrees, from which the sun is *low*."""

NIGHT = 90.0
"""Solar zenith angle, degrees, from which there is no sun."""

NIGHT_FEATURES = ("BT7", "BT9", "BT10", "BT9_mean3", "BT9_mean5", "BT9_std3")
"""Features of a landmark pixel that need no sunlight."""
