// MixerParameters: what files, adapters and plans need to know of a mixer: its parameters in a
// layer, how they are named, and which of them adapters target. Each mixer has a file of its own,
// <name>_parameters.cpp. Plain values and pure functions, no LibTorch.
#pragma once

#include <span>

#include "model/families/arch_spec.h"
#include "model/parameters/unit_builder.h"

namespace longshore {

struct MixerParameters {
  // Adds the layer's parameters, without the norms around the mixer, in the unit's order.
  void (*add)(UnitBuilder& builder, const ArchSpec& arch, const LayerSpec& layer) = nullptr;
  // The matrices that the targets "attention" and "all-linear" of adapters include.
  std::span<const Module> matrices;
  // The parameters whose names in files have no ".weight".
  std::span<const Module> bare = {};
  // It computes attention over all heads, whose result and log-sum-exp a plan may keep for
  // backward.
  bool attends = false;
};

// Each is defined in its mixer's file.
#define LONGSHORE_MIXER(kind, name) MixerParameters name##_parameters();
LONGSHORE_MIXERS(LONGSHORE_MIXER)
#undef LONGSHORE_MIXER

// Returns those of a mixer.
const MixerParameters& mixer_parameters(MixerKind mixer);
// Returns whether the module is a matrix (MixerParameters::matrices) of any mixer.
bool is_mixer_matrix(Module module);
// Returns whether the module is bare (MixerParameters::bare) in any mixer.
bool is_bare_in_mixer(Module module);

}  // namespace longshore
