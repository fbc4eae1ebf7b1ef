// AdapterBias: which biases of a frozen model are trained beside its adapters, PEFT's `bias`. The
// run file and adapter_config.json have the same words. Plain value.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace longshore {

enum class AdapterBias : uint8_t {
  kNone,
  kAdapted,  // those of modules with an adapter
  kAll       // every parameter of the model whose name ends with ".bias"
};

inline constexpr std::array<std::pair<std::string_view, AdapterBias>, 3> kAdapterBiases = {
    {{"none", AdapterBias::kNone},
     {"lora_only", AdapterBias::kAdapted},
     {"all", AdapterBias::kAll}}};

}  // namespace longshore
