// The `report` command writes an HTML page about runs.
#include "base/file.h"
#include "base/output.h"
#include "trainer/commands/command.h"
#include "trainer/report/run_report.h"

namespace longshore {
namespace {

struct ReportCommandOptions {
  std::vector<std::string> directories;  // active or finished runs
  std::string html;                      // output page; empty: report.html in the first run
};

int run_report(const ReportCommandOptions& options) {
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

void add_report(CommandArguments command, CommandLine& line) {
  ReportCommandOptions& options = call_with_options(command, line, run_report);
  command.add_option("runs", options.directories, "run directories (run.dir)").required();
  command.add_option("--to", options.html,
                     "HTML file to write; default: report.html in the first run directory");
}

}  // namespace

extern const Command kReportCommand = {
    .group = CommandGroup::kUse,
    .name = "report",
    .description = "write an HTML report of one run, or of several runs in the same charts",
    .add = add_report};

}  // namespace longshore
