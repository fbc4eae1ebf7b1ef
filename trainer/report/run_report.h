// RunReport: one page about a run, or about several in the same charts: how it learned, how fast,
// where the time and the memory went, on what data, on what machine. Pure function; the page needs
// no other file, and shows text of the runs' files as text, whatever it is.
#pragma once

#include <string>
#include <vector>

#include "trainer/report/run_record.h"

namespace longshore {

std::string report_page(const std::vector<RunRecord>& runs);

}  // namespace longshore
