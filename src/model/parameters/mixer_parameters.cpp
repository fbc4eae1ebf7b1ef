#include "model/parameters/mixer_parameters.h"

#include <algorithm>
#include <array>

namespace longshore {
namespace {

// In the order of MixerKind.
const auto& table() {
#define LONGSHORE_MIXER(kind, name) name##_parameters(),
  static const std::array rows = {LONGSHORE_MIXERS(LONGSHORE_MIXER)};
#undef LONGSHORE_MIXER
  return rows;
}

bool has(std::span<const Module> modules, Module module) {
  return std::ranges::find(modules, module) != modules.end();
}

}  // namespace

const MixerParameters& mixer_parameters(MixerKind mixer) {
  return table().at(static_cast<size_t>(mixer));
}

bool is_mixer_matrix(Module module) {
  return std::ranges::any_of(
      table(), [&](const MixerParameters& mixer) { return has(mixer.matrices, module); });
}

bool is_bare_in_mixer(Module module) {
  return std::ranges::any_of(table(),
                             [&](const MixerParameters& mixer) { return has(mixer.bare, module); });
}

}  // namespace longshore
