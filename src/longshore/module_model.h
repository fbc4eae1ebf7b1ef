// A model whose units are custom torch::nn modules.
#pragma once

#include "model/models/module_model.h"
