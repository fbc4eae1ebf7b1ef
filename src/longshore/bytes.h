// Sizes in bytes, and how they are written.
#pragma once

#include "base/bytes.h"
