// SimdLevel: how wide the instructions of the kernels are. Pure; found out once.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace longshore {

// `Vaes`: those of AES too. Levels that the CPU lacks are not to be called.
enum class SimdLevel : uint8_t { kBaseline, kAvx2, kAvx2Vaes, kAvx512, kAvx512Vaes };
inline constexpr std::array<SimdLevel, 5> kSimdLevels = {SimdLevel::kBaseline, SimdLevel::kAvx2,
                                                         SimdLevel::kAvx2Vaes, SimdLevel::kAvx512,
                                                         SimdLevel::kAvx512Vaes};
std::string_view name_of(SimdLevel level);
SimdLevel best_simd_level();
// Not every CPU has all levels below its best.
bool cpu_has(SimdLevel level);

}  // namespace longshore
