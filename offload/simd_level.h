// SimdLevel: the instruction sets for which the CPU kernels (optimizer step, gradient offload) are
// compiled. Pure functions; the CPU is queried once.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace longshore {

// Levels ascend. kBaseline runs on every CPU. `Vaes` levels include vector AES, which makes
// the random bits of stochastic rounding. Kernels of a level that the CPU lacks must not be called.
enum class SimdLevel : uint8_t { kBaseline, kAvx2, kAvx2Vaes, kAvx512, kAvx512Vaes };
inline constexpr std::array<SimdLevel, 5> kSimdLevels = {SimdLevel::kBaseline, SimdLevel::kAvx2,
                                                         SimdLevel::kAvx2Vaes, SimdLevel::kAvx512,
                                                         SimdLevel::kAvx512Vaes};
std::string_view name_of(SimdLevel level);
// Returns the highest level that the CPU has.
SimdLevel best_simd_level();
// Returns whether the CPU has the level; a CPU may lack levels below its best.
bool cpu_has(SimdLevel level);

}  // namespace longshore
