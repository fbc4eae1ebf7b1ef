// Text files: the raw documents of files, for training a tokenizer. One thread, bounded memory.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace longshore {

// Calls `use` with every document: each "text" member of a .jsonl file, or the whole of any other
// file. A DataError names file and line of a row without a text.
void for_each_text(const std::vector<std::string>& files,
                   const std::function<void(std::string_view)>& use);

}  // namespace longshore
