// Corrections of routers' choices that a run moves (arXiv:2412.19437, section 2.1.2): after a step
// the correction of an expert grows by the rate if it had fewer tokens than the mean of its layer,
// and shrinks by it if it had more. Corrections are fp32 [layers, experts], zeros for layers
// without a router. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "model/arch_spec.h"
#include "model/router_load.h"
#include "shard/unit_spec.h"

namespace longshore {

// Returns the place of each layer's corrections by the name of the parameter that holds them in
// the model's files; empty if the family has none. `whole` is of make_model_spec.
std::map<std::string, int64_t> correction_places(const ArchSpec& arch, const ModelSpec& whole);

// Moves the corrections by the loads of a whole step: RouterLoad::sums() added over its ranks. The
// loads are whole numbers, so all ranks get the same bits.
void move_corrections(const RouterShape& shape, std::span<const double> sums,
                      std::span<float> corrections);

}  // namespace longshore
