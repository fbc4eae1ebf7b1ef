// packing_report says what an export in the published form (checkpoint.export_format) did to the
// trained values, for the terminal and for programs. Experts that the files hold one by one count
// as one matrix. Plain functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "hf/exporter.h"

namespace longshore {

// Returns a line for each trained matrix, and one for all together; none if nothing was packed.
std::vector<std::string> packing_lines(const ExportResult& result);

// Returns a warning, with what to do instead, if less than half of the trained change survived in
// all matrices together, or packing changed more than training did; else empty. `adapter` says that
// the run trains adapters, and `run` names it in a command line.
std::string packing_warning(const ExportResult& result, bool adapter, const std::string& run);

// Returns {"error", "surviving", "matrices": [{"name", "error", "surviving"}]}; null if nothing was
// packed.
Json packing_json(const ExportResult& result);

// Logs the lines and the warning.
void log_packing(const ExportResult& result, bool adapter, const std::string& run);

}  // namespace longshore
