#include "trainer/model/random_base.h"

#include "base/texts.h"
#include "model/families/random_init.h"
#include "trainer/model/values_in_parts.h"

namespace longshore {

RandomBase::RandomBase(const ModelSpec& whole, uint64_t seed) : seed_(seed) {
  for (const UnitSpec& unit : whole.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      inits_.emplace(parameter.name, parameter.init);
    }
  }
}

Bytes RandomBase::read(const std::string& name, StorageType type, Bytes begin,
                       std::span<std::byte> out) const {
  store_in_parts(type, begin / width_of(number_of(type)), out,
                 [&](int64_t first, std::span<float> values) { read_values(name, first, values); });
  return 0;
}

std::string RandomBase::place_of(const std::string& name) const {
  return "the random values of '" + printable(name) + "'";
}

void RandomBase::read_values(const std::string& name, int64_t begin, std::span<float> out) const {
  fill_random(name, inits_.at(name), seed_, begin, out);
}

}  // namespace longshore
