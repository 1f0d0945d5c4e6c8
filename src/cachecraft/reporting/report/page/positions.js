// The text of one item, each token shaded by the share of layers and heads that keep it.
"use strict";

function prose(place) {
  const { tokens, shares, answer, needle } = dataOf(place.dataset.key), own = shares[Number(place.dataset.policy)];
  const inAnswer = new Set(answer), inNeedle = new Set(needle);
  place.append(...tokens.map((token, at) => make("span", {
    style: `--h:${own[at] / 100}`, title: `${at}: kept by ${own[at]} %`,
    ...(inAnswer.has(at) ? { class: "answer" } : inNeedle.has(at) ? { class: "needle" } : {}),
  }, token)));
}
