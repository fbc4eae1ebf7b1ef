// report: a page about runs.
#include "base/errors.h"
#include "base/output.h"
#include "base/own_file.h"
#include "trainer/commands/commands.h"
#include "trainer/report/run_report.h"

namespace longshore {

int run_report(const ReportOptions& options) {
  std::vector<RunRecord> runs;
  for (const std::string& directory : options.directories) {
    runs.push_back(read_run_record(directory));
  }
  const std::string path =
      options.html.empty() ? options.directories.front() + "/report.html" : options.html;
  write_output_file(path, report_page(runs));
  print_out("%s\n", path.c_str());
  return 0;
}

}  // namespace longshore
