// KeysBesidePath: compares the keys of [adapter] that stand beside adapter.path with the settings
// of the adapter that it names. The settings are what the run has, so that a key may say the same:
// a run file that `longshore init --adapter` wrote stays usable when --adapter.path is added on the
// command line. Pure functions; any thread.
#pragma once

#include <string>

#include "config/run_config.h"
#include "hf/adapter_directory.h"
#include "model/families/arch_spec.h"

namespace longshore {

// KeysBesidePath is the two sides of the comparison. Plain references; they outlive the call.
struct KeysBesidePath {
  const AdapterSection& section;    // with the keys in beside_path
  const AdapterSettings& settings;  // of adapter_config.json
  const ArchSpec& arch;             // with the adapter's targets
};

// Compares the values; "all-linear" and a list of the same matrices are equal. Returns one sentence
// that names the keys of files whose values adapter.path of the command line replaces, "" if there
// are none. Throws ConfigError with every other difference: such a run would not be what its keys
// say.
std::string compare_beside_path(const KeysBesidePath& beside);

}  // namespace longshore
