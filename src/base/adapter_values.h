// Values that the run file's [adapter] and PEFT's adapter_config.json have in the same words:
// AdapterBias for `bias`, and PatternNumber for the entries of rank_pattern and alpha_pattern. They
// own what they hold and know no other part of the program; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace longshore {

// Which biases of a frozen model are trained beside its adapters.
enum class AdapterBias : uint8_t {
  kNone,
  kAdapted,  // those of modules with an adapter
  kAll       // every parameter of the model whose name ends with ".bias"
};

inline constexpr std::array<std::pair<std::string_view, AdapterBias>, 3> kAdapterBiases = {
    {{"none", AdapterBias::kNone},
     {"lora_only", AdapterBias::kAdapted},
     {"all", AdapterBias::kAll}}};

// The rank or alpha of the modules whose whole name, or whose name behind one of its dots, the
// pattern matches. NumbersByPattern (base/name_pattern.h) matches names.
struct PatternNumber {
  std::string pattern;  // a regular expression in the syntax of Python's `re`
  double number = 0.0;
  bool operator==(const PatternNumber&) const = default;
};

}  // namespace longshore
