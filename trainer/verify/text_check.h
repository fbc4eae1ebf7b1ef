// A model directory's tokenizer and chat template, used as a run uses them: texts there
// and back, ids that the model has rows for, ends of texts, conversations with what is trained of
// them. One thread.
#pragma once

#include <string>

#include "model/families/arch_spec.h"
#include "trainer/verify/findings.h"
#include "trainer/verify/number_check.h"

namespace longshore {

void check_texts(const std::string& directory, const ArchSpec& arch, Findings& findings);

// Texts of `longest` tokens, a third of that, and one: a built-in text in the directory's own
// tokens, or ids drawn at random where it has no tokenizer.
Texts sample_texts(const std::string& directory, const ArchSpec& arch, int64_t longest);

}  // namespace longshore
