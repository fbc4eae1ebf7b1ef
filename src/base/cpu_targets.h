// cpu_targets: the instruction sets that loops written with Highway are compiled for. Included
// before hwy/foreach_target.h.
#pragma once

// Disables targets without a gain here, and targets whose vectors have no fixed size. Processors
// before AVX2 run Highway's scalar code.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
