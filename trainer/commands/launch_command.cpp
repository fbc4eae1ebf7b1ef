// The `launch` command starts the ranks of this node.
#include "comm/ranks/launcher.h"
#include "trainer/commands/command.h"

namespace longshore {
namespace {

void add_launch(CommandArguments command, CommandLine& line) {
  LaunchOptions& options = call_with_options(command, line, launch_ranks, CommandRanks::kAll);
  options.command = line.rank_command;
  command.add_number("--nproc", options.ranks, 1, 1 << 16, "number of ranks on this node")
      .required();
  command.add_number("--nnodes", options.nodes, 1, 1 << 16, "number of nodes");
  command.add_number("--node-rank", options.node, 0, (1 << 16) - 1, "number of this node, from 0");
  command.add_option("--rendezvous", options.rendezvous,
                     "HOST:PORT of the store on node 0; required with several nodes");
  command.add_option(
      "--secret-file", options.secret_file,
      "file with a shared secret, the same on all nodes; ranks prove that they know it when they "
      "connect (SECURITY.md); a single node makes a secret itself");
}

}  // namespace

extern const Command kLaunchCommand = {
    .group = CommandGroup::kTrain,
    .name = "launch",
    .description = "start ranks on this node: launch [options] -- COMMAND...",
    .add = add_launch};

}  // namespace longshore
