// The style rules that a machine can check, over every source file of the repository. A failure
// names file, line and limit. The limits and the table of folders are kept here only.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/tidy/source_files.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxFileLines = 600;
constexpr int kMaxFunctionLines = 70;
constexpr int kMaxLineCharacters = 100;
// Spelled as a character list so that this file does not hold the words themselves.
constexpr char kToDo[] = {'T', 'O', 'D', 'O'};
constexpr char kFixMe[] = {'F', 'I', 'X', 'M', 'E'};
constexpr std::string_view kNotes[] = {{kToDo, 4}, {kFixMe, 5}};

struct Folder {
  std::string path;
  std::string name;  // as in CMake targets
  bool libtorch;     // may include LibTorch
  std::set<std::string> uses;
};

// Dependencies go one way: a folder includes its own headers and those of the folders it uses.
const std::vector<Folder>& folders() {
  static const std::vector<Folder> table = {
      {"src/base", "base", false, {}},
      {"src/shard", "shard", false, {"base"}},
      {"config", "config", false, {"base", "shard"}},
      {"src/device", "device", true, {"base"}},
      {"src/kernels", "kernels", false, {"base", "device"}},
      {"src/comm", "comm", true, {"base", "device"}},
      {"pinned", "pinned", false, {"base", "shard", "device"}},
      {"nvme", "nvme", false, {"base", "shard", "device", "pinned"}},
      {"src/model", "model", true, {"base", "shard", "device", "kernels"}},
      {"src/hf", "hf", false, {"base", "shard"}},
      {"src/text", "text", false, {"base"}},
      {"src/data", "data", false, {"base", "config", "text"}},
      {"offload",
       "offload",
       false,
       {"base", "shard", "config", "device", "kernels", "comm", "pinned", "nvme"}},
      {"offload/engine",
       "engine",
       true,
       {"base", "shard", "device", "comm", "pinned", "nvme", "model", "offload"}},
      {"src/longshore",
       "longshore",
       true,
       {"base", "shard", "device", "model", "offload", "engine"}},
      {"trainer",
       "trainer",
       true,
       {"base", "shard", "config", "device", "kernels", "comm", "pinned", "nvme", "model", "hf",
        "text", "data", "offload", "engine"}},
  };
  return table;
}

// The order of subfolders ("rooms"): each includes its own headers and those of the ones before it.
const std::vector<std::vector<std::string>>& rooms() {
  static const std::vector<std::vector<std::string>> table = {
      {"src/comm/store", "src/comm/ranks", "src/comm/operations", "src/comm/watchdog",
       "src/comm/collectives", "src/comm/world"},
      {"nvme/drive", "nvme/parts", "nvme/probe", "nvme/commit", "nvme/store"},
      {"src/model/families", "src/model/parameters", "src/model/ops", "src/model/attention",
       "src/model/losses", "src/model/units", "src/model/mixers", "src/model/decoder",
       "src/model/models"},
      {"src/data/sources", "src/data/tokens", "src/data/rows", "src/data/prepare"},
      {"offload/schedule", "offload/staging", "offload/optimizer", "offload/plan",
       "offload/forecast"},
      {"trainer/checkpoint", "trainer/directory", "trainer/model", "trainer/data", "trainer/device",
       "trainer/setup", "trainer/run", "trainer/metrics", "trainer/report", "trainer/use",
       "trainer/loop", "trainer/verify", "trainer/bench", "trainer/machine", "trainer/bench_run",
       "trainer/commands"},
  };
  return table;
}

// No environment variable changes a run: only the launchers' variables, and those of the terminal
// and of the user's directories, are read.
bool may_be_read_from_environment(std::string_view variable) {
  static const std::set<std::string_view> names = {
      "RANK",
      "LOCAL_RANK",
      "WORLD_SIZE",
      "LOCAL_WORLD_SIZE",
      "MASTER_ADDR",
      "MASTER_PORT",
      "XDG_CACHE_HOME",
      "HOME",
      // HF_HOME and the next ones name the caches of models that other programs fetched.
      "HF_HOME",
      "HF_HUB_CACHE",
      "GROUP_RANK",
      "NO_COLOR",
      "GROUP_WORLD_SIZE",
      "TERM",
      "LONGSHORE_LAUNCH",
      "LONGSHORE_SECRET",
  };
  for (std::string_view launcher : {"TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_"}) {
    if (variable.starts_with(launcher)) return true;
  }
  return names.contains(variable);
}

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front())) != 0) s.remove_prefix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back())) != 0) s.remove_suffix(1);
  return s;
}

// Drops "template <class T> requires ...", which says nothing about the declaration behind it.
std::string_view without_template_head(std::string_view head) {
  head = trimmed(head);
  while (head.starts_with("template")) {
    std::size_t i = head.find('<');
    if (i == std::string_view::npos) return head;
    int depth = 0;
    do {
      depth += head[i] == '<' ? 1 : head[i] == '>' ? -1 : 0;
      ++i;
    } while (i < head.size() && depth > 0);
    head = trimmed(head.substr(i));
  }
  return head;
}

enum class Brace { kContainer, kFunction, kData };

// Returns the kind of an opening brace outside any function, from the code before it.
Brace classify(std::string_view head, bool inside_parentheses) {
  head = without_template_head(head);
  for (std::string_view word : {"static ", "inline ", "typedef ", "export "}) {
    if (head.starts_with(word)) head = trimmed(head.substr(word.size()));
  }
  for (std::string_view word : {"namespace", "class ", "struct ", "union ", "enum "}) {
    if (head.starts_with(word)) return Brace::kContainer;
  }
  if (head.starts_with("extern") && head.find('(') == std::string_view::npos) {
    return Brace::kContainer;
  }
  const bool lambda = head.find('[') != std::string_view::npos &&
                      (head.find("](") != std::string_view::npos || head.ends_with(']'));
  if (lambda) return Brace::kFunction;
  const bool initializer = head.ends_with('=') || head.ends_with("return") || head.ends_with(',');
  const bool call = head.find('(') != std::string_view::npos;
  return call && !initializer && !inside_parentheses ? Brace::kFunction : Brace::kData;
}

struct Function {
  std::string_view head;
  std::size_t line = 0;  // line of the opening brace, from 1
  int lines = 0;         // from the opening to the closing brace
};

// Finds every outermost function body (lambdas inside a function count as part of it).
class FunctionFinder {
 public:
  explicit FunctionFinder(std::string_view code) : code_(code) {}

  std::vector<Function> find() {
    for (; i_ < code_.size(); ++i_) step(code_[i_]);
    return found_;
  }

 private:
  void step(char c) {
    if (c == '\n') ++line_;
    if (inside_function_ > 0) {
      inside_function_ += c == '{' ? 1 : c == '}' ? -1 : 0;
      if (inside_function_ == 0) close_function();
      return;
    }
    if (c == '(') ++parentheses_;
    if (c == ')') --parentheses_;
    if (c == '{') open();
    if ((c == '}' || c == ';') && parentheses_ == 0) head_ = i_ + 1;
  }

  void open() {
    const std::string_view head = code_.substr(head_, i_ - head_);
    if (classify(head, parentheses_ > 0) == Brace::kFunction) {
      // The braces of a member initializer, then the body: one function, from the first head.
      current_ = {trimmed(head), line_, 0};
      inside_function_ = 1;
    } else if (parentheses_ == 0) {  // `f(T x = {})`: still the head of f
      head_ = i_ + 1;
    }
  }

  void close_function() {
    std::size_t next = code_.find_first_not_of(" \t\n", i_ + 1);
    const bool continues = next != std::string_view::npos && parentheses_ == 0 &&
                           (code_[next] == '{' ||
                            (code_[next] == ',' && current_.head.find(':') != std::string::npos));
    if (continues) return;  // the head stays: the next brace belongs to the same function
    current_.lines = static_cast<int>(line_ - current_.line) + 1;
    found_.push_back(current_);
    head_ = i_ + 1;
  }

  std::string_view code_;
  std::size_t i_ = 0;
  std::size_t line_ = 1;
  std::size_t head_ = 0;  // start of the code before the next brace
  int parentheses_ = 0;
  int inside_function_ = 0;  // braces open inside the current function
  Function current_;
  std::vector<Function> found_;
};

std::vector<int> function_lengths(std::string_view text) {
  std::vector<int> lengths;
  const std::string code = only_code(text);
  for (const Function& function : FunctionFinder(code).find()) lengths.push_back(function.lines);
  return lengths;
}

// Returns the innermost folder of a file.
const Folder* folder_of(std::string_view path) {
  const Folder* found = nullptr;
  for (const Folder& folder : folders()) {
    if (!path.starts_with(folder.path + "/")) continue;
    if (found == nullptr || found->path.size() < folder.path.size()) found = &folder;
  }
  return found;
}

// Returns the folder of a header by its include name, which leaves "src/" out.
const Folder* folder_of_included(std::string_view name) {
  const Folder* found = folder_of(name);
  return found != nullptr ? found : folder_of("src/" + std::string(name));
}

// The name between the quotes or angle brackets of an #include line, else empty.
std::string_view included_name(std::string_view line) {
  line = trimmed(line);
  if (!line.starts_with("#include")) return {};
  const std::size_t open = line.find_first_of("\"<");
  const std::size_t close = line.find_last_of("\">");
  return open < close && close != std::string_view::npos ? line.substr(open + 1, close - open - 1)
                                                         : std::string_view{};
}

bool is_libtorch(std::string_view included) {
  for (std::string_view root : {"torch/", "ATen/", "c10/"}) {
    if (included.starts_with(root)) return true;
  }
  return false;
}

// Returns the argument of a getenv call: its literal, "?" if it is none, empty without a call.
std::string_view environment_variable(std::string_view line) {
  const std::size_t call = line.find("getenv(");
  if (call == std::string_view::npos) return {};
  const std::string_view argument = line.substr(call + std::string_view("getenv(").size());
  if (!argument.starts_with('"')) return "?";
  return argument.substr(1, argument.find('"', 1) - 1);
}

std::size_t characters(std::string_view utf8) {
  std::size_t n = 0;
  for (char c : utf8) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return n;
}

// ---- The rules ----

// Goal: the rules below read at least some files.
TEST(Tidy, FindsTheSources) {
  EXPECT_GT(sources().size(), 10u);
}

// Goal: a header begins with a comment that says what it is.
TEST(Tidy, EveryHeaderBeginsWithAHeadComment) {
  for (const SourceFile& file : sources()) {
    if (!file.has_extension({".h"}) || file.lines.empty()) continue;
    EXPECT_TRUE(file.lines[0].starts_with("//") || file.lines[0].starts_with("/*"))
        << at(file, 1) << "a header begins with a comment: what it is, who owns it, which thread";
  }
}

// Goal: the comment of a function can be read alone.
TEST(Tidy, DocstringsStandAlone) {
  for (const SourceFile& file : sources()) {
    if (!file.path.ends_with(".h") || file.path.starts_with("tests/")) continue;
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      for (std::string_view opening : {"// The same", "// And back", "// As above", "// They "}) {
        EXPECT_FALSE(trimmed(file.lines[i]).starts_with(opening))
            << at(file, i + 1) << "continues the comment before; say what this one does";
      }
    }
  }
}

// Goal: a comment is a sentence. These openings begin a fragment that needs the line before it.
TEST(Tidy, CommentsAreSentences) {
  for (const SourceFile& file : sources()) {
    if (!file.is_cpp()) continue;
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      const bool continues = i > 0 && trimmed(file.lines[i - 1]).starts_with("//");
      for (std::string_view opening : {"// Of ", "// Whose ", "// What "}) {
        EXPECT_FALSE(!continues && trimmed(file.lines[i]).starts_with(opening))
            << at(file, i + 1) << "is a fragment; write a sentence with a subject and a verb";
      }
    }
  }
}

// Goal: a concept has one name, the field's. These names were replaced and do not come back.
TEST(Tidy, ReplacedNamesAreGone) {
  static const std::vector<std::string> replaced = {
      "Gradient"
      "Home",
      "Place"
      "Holders",
      "Region"
      "Place",
      "kExpAvg"
      "Units",
      "has_"
      "units",
      "Grad"
      "Sink",
      "Grad"
      "Drain",
      "Grad"
      "Reducer",
      "Grad"
      "Accumulator",
      "Input"
      "Runs",
      "State"
      "Walk",
      "Command"
      "Words",
      "Rank"
      "Beat",
      "Router"
      "Figures",
      "kept "
      "input",
      "kept_"
      "input",
      "at "
      "home",
      "began "
      "anew",
      "in the "
      "making",
  };
  for (const SourceFile& file : sources()) {
    for (const std::string& name : replaced) {
      const std::size_t found = file.text.find(name);
      EXPECT_EQ(found, std::string::npos)
          << at(file, 1 + std::count(file.text.begin(), file.text.begin() + found, '\n')) << name;
    }
  }
}

// Goal: a file is read in one sitting.
TEST(Tidy, FilesAreShort) {
  for (const SourceFile& file : sources()) {
    EXPECT_LE(file.lines.size(), kMaxFileLines)
        << at(file, file.lines.size()) << "at most " << kMaxFileLines << " lines a file";
  }
}

// Goal: two files fit side by side on a screen.
TEST(Tidy, LinesAreShort) {
  for (const SourceFile& file : sources()) {
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_LE(characters(file.lines[i]), kMaxLineCharacters)
          << at(file, i + 1) << "at most " << kMaxLineCharacters << " characters a line";
    }
  }
}

// Goal: a function fits on a screen.
TEST(Tidy, FunctionsAreShort) {
  for (const SourceFile& file : sources()) {
    if (!file.is_cpp()) continue;
    const std::string code = only_code(file.text);
    for (const Function& function : FunctionFinder(code).find()) {
      EXPECT_LE(function.lines, kMaxFunctionLines)
          << at(file, function.line) << "at most " << kMaxFunctionLines
          << " lines a function: " << function.head.substr(0, 80);
    }
  }
}

// Goal: notes about unfinished work are kept in the issue tracker, not in the code.
TEST(Tidy, NoStrayNotes) {
  for (const SourceFile& file : sources()) {
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      for (const std::string_view note : kNotes) {
        EXPECT_EQ(file.lines[i].find(note), std::string::npos) << at(file, i + 1) << note;
      }
    }
  }
}

// Goal: folders include only the folders they may use, and LibTorch only where it is allowed.
TEST(Tidy, FoldersDependOneWay) {
  for (const SourceFile& file : sources()) {
    const Folder* folder = folder_of(file.path);
    if (folder == nullptr || !file.is_cpp()) continue;
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      const std::string_view name = included_name(file.lines[i]);
      EXPECT_TRUE(folder->libtorch || !is_libtorch(name))
          << at(file, i + 1) << folder->path << " does without LibTorch, but includes " << name;
      const Folder* used = folder_of_included(name);
      if (used == nullptr || used == folder) continue;
      EXPECT_TRUE(folder->uses.contains(used->name))
          << at(file, i + 1) << folder->path << " may not use " << used->path;
    }
  }
}

// Goal: subfolders of a folder include only those before them in the order.
TEST(Tidy, RoomsDependOneWay) {
  for (const std::vector<std::string>& order : rooms()) {
    const auto room_of = [&order](std::string_view path) {
      const std::string_view room = path.substr(0, path.rfind('/'));
      // Include paths leave "src/" out.
      return std::ranges::find_if(order, [room](std::string_view name) {
        return name == room || (name.starts_with("src/") && name.substr(4) == room);
      });
    };
    for (const SourceFile& file : sources()) {
      const auto own = room_of(file.path);
      if (own == order.end() || !file.is_cpp()) continue;
      for (std::size_t i = 0; i < file.lines.size(); ++i) {
        const std::string_view name = included_name(file.lines[i]);
        const auto used = room_of(name);
        if (used == order.end()) continue;
        EXPECT_TRUE(used <= own) << at(file, i + 1) << *own << " may not use " << *used;
      }
    }
  }
}

// Goal: the order holds for all files of these folders: none but main.cpp is outside of the rooms.
TEST(Tidy, EveryFileOfAFolderWithRoomsIsInOne) {
  std::set<std::string> all;
  for (const std::vector<std::string>& order : rooms()) all.insert(order.begin(), order.end());
  for (const SourceFile& file : sources()) {
    const bool divided = file.path.starts_with("trainer/") || file.path.starts_with("src/model/") ||
                         file.path.starts_with("src/data/");
    if (!divided || !file.is_cpp()) continue;
    const std::string room = file.path.substr(0, file.path.rfind('/'));
    EXPECT_TRUE(file.path == "trainer/main.cpp" || room.ends_with("_c/include") ||
                all.contains(room))
        << at(file, 1) << "move it to a folder that stands in rooms()";
  }
}

// Goal: every folder of sources is in the table of folders.
TEST(Tidy, EveryFolderStandsInTheTable) {
  for (const SourceFile& file : sources()) {
    if (!file.path.starts_with("src/") || !file.is_cpp()) continue;
    EXPECT_NE(folder_of(file.path), nullptr) << at(file, 1) << "add its folder to folders()";
  }
}

// Goal: the table has no cycle: each folder uses only those above it.
TEST(Tidy, TheTableOfFoldersIsInOrder) {
  std::set<std::string> above;
  for (const Folder& folder : folders()) {
    for (const std::string& used : folder.uses) EXPECT_TRUE(above.contains(used)) << folder.name;
    above.insert(folder.name);
  }
}

// Goal: only the allowed environment variables are read, so that a run depends on its file alone.
TEST(Tidy, TheEnvironmentChangesNothing) {
  for (const SourceFile& file : sources()) {
    if (!file.is_cpp() || file.path.starts_with("tests/")) continue;
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      const std::string_view variable = environment_variable(file.lines[i]);
      EXPECT_TRUE(variable.empty() || may_be_read_from_environment(variable))
          << at(file, i + 1) << "reads the environment variable " << variable;
    }
  }
}

// Goal: the branches of a GPU are taken where on_gpu() is true, so tests can take them on CPUs.
TEST(Tidy, AGpuIsAskedForInOnePlace) {
  for (const SourceFile& file : sources()) {
    if (!file.is_cpp() || file.path.starts_with("tests/") || file.path.starts_with("src/device/")) {
      continue;
    }
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_EQ(file.lines[i].find("is_cuda("), std::string::npos)
          << at(file, i + 1) << "ask on_gpu() of device/gpu_tensors.h";
    }
  }
}

// Goal: gpu_check runs exactly the suites that ctest leaves out; a pattern on names of tests would
// also select tests that skip on a GPU.
TEST(Tidy, GpuCheckTakesTheSuitesThatCtestLeavesOut) {
  const std::string suites = "Gpu*.*:*/Gpu*.*:*Gpu.*";
  const std::string parts = read_source("scripts/dev/gpu/parts.py").text;
  const std::string tests = read_source("tests/CMakeLists.txt").text;
  EXPECT_NE(parts.find("GPU = \"" + suites + "\""), std::string::npos);
  EXPECT_NE(tests.find(suites + ")"), std::string::npos);
  EXPECT_EQ(parts.find("*Gpu*\""), std::string::npos);
}

// ---- The measure itself ----

// Goal: namespaces, classes, data and comments are not measured as functions.
TEST(TidyMeasure, CountsFunctionsOnly) {
  EXPECT_EQ(function_lengths("namespace a {\nstruct B : C<int()> {\n  int x = 1'000;\n};\n}\n"),
            (std::vector<int>{}));
  EXPECT_EQ(function_lengths("const char* kBrace = \"}{(\"; // void f() {\nint t[] = {\n1, f(2)};"),
            (std::vector<int>{}));
  EXPECT_EQ(function_lengths("enum class E { a, b };\nextern \"C\" {\nint f(int);\n}\n"),
            (std::vector<int>{}));
}

// Goal: templates, initializer lists, default arguments, lambdas and tests are measured whole.
TEST(TidyMeasure, MeasuresFromBraceToBrace) {
  EXPECT_EQ(
      function_lengths("template <class T>\nT f(T x = {}) {\n  if (x) {\n  }\n  return x;\n}\n"),
      (std::vector<int>{5}));
  EXPECT_EQ(
      function_lengths("class A {\n A() : a_{1}, b_{2} {\n  g();\n }\n int f() { return 1; }\n};"),
      (std::vector<int>{3, 1}));
  EXPECT_EQ(function_lengths("auto f = [](int x) {\n  return x;\n};\nTEST(A, B) {\n\n}\n"),
            (std::vector<int>{3, 3}));
  EXPECT_EQ(function_lengths("const R k[] = {\n  {1, [](int) {\n  return 2; }},\n};\nvoid g() {}"),
            (std::vector<int>{2, 1}));
  EXPECT_EQ(function_lengths("auto s = R\"(\n{{{\n)\";\nint f() const noexcept {\n}\n"),
            (std::vector<int>{2}));
}

}  // namespace
}  // namespace longshore
