// Text files: the raw documents of files, for learning a tokenizer. One thread, bounded memory.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace longshore {

// Calls `use` with every document: a .jsonl file's "text" members row by row, any other file as a
// whole. DataError names file and line of a row without a text.
void for_each_text(const std::vector<std::string>& files,
                   const std::function<void(std::string_view)>& use);

}  // namespace longshore
