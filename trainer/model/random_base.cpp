#include "trainer/model/random_base.h"

#include <algorithm>
#include <vector>

#include "base/number_formats.h"
#include "base/texts.h"
#include "model/families/random_init.h"

namespace longshore {
namespace {

// A conversion holds this many values as fp32, on each thread.
constexpr size_t kConvertElements = size_t{1} << 17;

}  // namespace

RandomBase::RandomBase(const ModelSpec& whole, uint64_t seed) : seed_(seed) {
  for (const UnitSpec& unit : whole.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      inits_.emplace(parameter.name, parameter.init);
    }
  }
}

Bytes RandomBase::read(const std::string& name, StorageType type, Bytes begin,
                       std::span<std::byte> out) const {
  const auto width = static_cast<size_t>(width_of(number_of(type)));
  auto first = begin / static_cast<int64_t>(width);
  std::vector<float> values(std::min(out.size() / width, kConvertElements));
  while (!out.empty()) {
    const std::span<float> part =
        std::span(values).first(std::min(out.size() / width, values.size()));
    read_values(name, first, part);
    store_numbers(type, part, out.first(part.size() * width));
    out = out.subspan(part.size() * width);
    first += static_cast<int64_t>(part.size());
  }
  return 0;
}

std::string RandomBase::place_of(const std::string& name) const {
  return "the random values of '" + printable(name) + "'";
}

void RandomBase::read_values(const std::string& name, int64_t begin, std::span<float> out) const {
  fill_random(name, inits_.at(name), seed_, begin, out);
}

}  // namespace longshore
