// SimdLevel: how wide the instructions of the kernels are. Pure; found out once.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace longshore {

// At last those of AES too; levels above the CPU's are not to be called.
enum class SimdLevel : uint8_t { kBaseline, kAvx2, kAvx512, kAvx512Vaes };
inline constexpr std::array<SimdLevel, 4> kSimdLevels = {
    SimdLevel::kBaseline, SimdLevel::kAvx2, SimdLevel::kAvx512, SimdLevel::kAvx512Vaes};
std::string_view name_of(SimdLevel level);
SimdLevel best_simd_level();

}  // namespace longshore
