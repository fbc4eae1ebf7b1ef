// The errors that the library throws, each with the exit code of a program that ends by it.
#pragma once

#include "base/errors.h"
