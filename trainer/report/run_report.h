// One HTML page about a run, or about several in the same charts: learning, speed, time
// and memory, data and machine. The page needs no other file and escapes all text from the runs'
// files. Pure function.
#pragma once

#include <string>
#include <vector>

#include "trainer/report/run_record.h"

namespace longshore {

std::string report_page(const std::vector<RunRecord>& runs);

}  // namespace longshore
