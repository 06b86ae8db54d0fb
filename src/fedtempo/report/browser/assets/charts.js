// Every place that names a chart gets it: <div data-chart="loss"></div>.
"use strict";
for (const place of document.querySelectorAll("[data-chart]")) FT.chart(place, FT.data.charts[place.dataset.chart]);
