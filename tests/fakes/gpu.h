// LONGSHORE_NEEDS_GPU(): the first line of a GPU test; without a GPU the test is skipped.
#pragma once

#include <gtest/gtest.h>

#include "device/cuda_runtime.h"

#define LONGSHORE_NEEDS_GPU() \
  if (longshore::cuda_devices().empty()) GTEST_SKIP() << "not run: no GPU"
