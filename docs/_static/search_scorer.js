// The order of search results. Sphinx sorts pages with the same score by name, and puts members of classes above pages.
// Here pages that answer questions come first, and the API reference and licences last.
var Scorer = {
  score: ([page, , , , score, , kind]) => {
    if (kind === "index") return score; // words that a page declares as its own, and terms of the glossary
    const answers = ["faq", "glossary", "troubleshooting", "thresholds", "installation"];
    const late = ["architecture", "reproducibility", "reference_code"];
    if (answers.includes(page)) return score + 3;
    if (late.includes(page)) return score - 3;
    return page.startsWith("reference/") || kind === "object" ? score - 2 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 0, 1: 0, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
