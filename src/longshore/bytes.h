// Sizes in bytes and their text form.
#pragma once

#include "base/bytes.h"
