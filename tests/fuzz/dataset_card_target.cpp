// The card of a data set: YAML between two lines of dashes.
#include "hf/hub_cache.h"
#include "tests/fuzz/fuzz_targets.h"

namespace longshore {

bool fuzz_dataset_card(std::string_view bytes) {
  return !dataset_configs(std::string(bytes), "card").empty();
}

}  // namespace longshore
