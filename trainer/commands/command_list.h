// The list of all commands, which the build generates from the names of the files
// (trainer/CMakeLists.txt), and the table of earlier names. Constant data.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "trainer/commands/command.h"

namespace longshore {

// Returns the commands ordered by name.
std::vector<const Command*> all_commands();

// OldCommand: an earlier name of a command. It still works, but help does not list it.
struct OldCommand {
  std::string_view name;   // "inspect data"
  std::string_view words;  // the words that replace it: "check data"
};

// The first entry that matches is used, so a longer name comes before a name that it begins with.
inline constexpr std::array<OldCommand, 9> kOldCommands = {{
    {"validate", "check run"},
    {"verify", "check model"},
    {"inspect data", "check data"},
    {"inspect", "check"},
    {"gpu-check", "check gpu"},
    {"doctor", "check machine"},
    {"tokenize", "tokenizer encode"},
    {"plot", "report --terminal"},
    {"completion", "config completion"},
}};

// Names that other programs use for commands of ours. They are suggested in errors, but do not run.
inline constexpr std::array<OldCommand, 16> kOtherPrograms = {{
    {"finetune", "train"},
    {"fine-tune", "train"},
    {"sft", "train"},
    {"dpo", "train"},
    {"fit", "train"},
    {"resume", "train"},
    {"checkpoint", "ckpt"},
    {"checkpoints", "ckpt"},
    {"chat", "generate --chat"},
    {"inference", "generate"},
    {"merge", "export --merged"},
    {"merge-lora", "export --merged"},
    {"convert", "init --from"},
    {"preprocess", "prepare"},
    {"env", "version"},
    {"info", "version"},
}};

}  // namespace longshore
